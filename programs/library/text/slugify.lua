-- slugify(text): small letters and digits with single hyphens between them, for addresses and file names.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "slugify needs a text" }
end
local slug = string.gsub(string.lower(text), "[^a-z0-9]+", "-")
return (string.gsub(string.gsub(slug, "^%-", ""), "%-$", ""))
