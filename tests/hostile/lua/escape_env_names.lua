-- expect: ok=true
-- No environment by another name.
return _ENV == nil and _G == nil and self == nil and this == nil
