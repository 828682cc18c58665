-- snake_case(text): its words in small letters, joined by underscores: "Total Price" is total_price.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "snake_case needs a text" }
end
local name = string.gsub(string.lower(text), "[^a-z0-9]+", "_")
return (string.gsub(string.gsub(name, "^_", ""), "_$", ""))
