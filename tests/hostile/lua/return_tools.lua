-- expect: refused
-- Tools are not data.
return tools
