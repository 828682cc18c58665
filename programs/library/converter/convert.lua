-- convert(10, "km", "miles"), also convert(10, {from_unit = "km", to_unit = "miles"}): the value in the other unit.
-- Length, mass, volume (US measures), speed, time, temperature. Names may be short, long or plural.
local value = args[1] or kwargs.value
local from = args[2] or kwargs.from_unit or kwargs.from
local to = args[3] or kwargs.to_unit or kwargs.to
if type(value) ~= "number" or type(from) ~= "string" or type(to) ~= "string" then
    local message = "convert needs a number, the unit it is in, and the unit that is wanted"
    return Outcome.error{ error_type = "invalid_argument", error_message = message }
end

-- Kind, size in the kind's base unit, names.
local units = {
    { "length", 0.001, "mm millimeter millimetre" },
    { "length", 0.01, "cm centimeter centimetre" },
    { "length", 1, "m meter metre" },
    { "length", 1000, "km kilometer kilometre" },
    { "length", 0.0254, "in inch inches" },
    { "length", 0.3048, "ft foot feet" },
    { "length", 0.9144, "yd yard" },
    { "length", 1609.344, "mi mile" },
    { "length", 1852, "nmi nautical_mile" },
    { "mass", 0.000001, "mg milligram" },
    { "mass", 0.001, "g gram" },
    { "mass", 1, "kg kilogram kilo" },
    { "mass", 1000, "t tonne" },
    { "mass", 0.028349523125, "oz ounce" },
    { "mass", 0.45359237, "lb pound" },
    { "mass", 6.35029318, "st stone" },
    { "volume", 0.001, "ml milliliter millilitre" },
    { "volume", 0.01, "cl centiliter centilitre" },
    { "volume", 1, "l liter litre" },
    { "volume", 1000, "m3 cubic_meter cubic_metre" },
    { "volume", 0.00492892159375, "tsp teaspoon" },
    { "volume", 0.01478676478125, "tbsp tablespoon" },
    { "volume", 0.2365882365, "cup" },
    { "volume", 0.473176473, "pt pint" },
    { "volume", 0.946352946, "qt quart" },
    { "volume", 3.785411784, "gal gallon" },
    { "speed", 1, "m/s mps" },
    { "speed", 1 / 3.6, "km/h kmh kph" },
    { "speed", 0.44704, "mph mi/h" },
    { "speed", 1852 / 3600, "kn knot" },
    { "speed", 0.3048, "ft/s fps" },
    { "time", 0.001, "ms millisecond" },
    { "time", 1, "s sec second" },
    { "time", 60, "min minute" },
    { "time", 3600, "h hr hour" },
    { "time", 86400, "d day" },
    { "time", 604800, "wk week" },
    { "time", 31557600, "y yr year" },
    { "temperature", 1, "c celsius °c" },
    { "temperature", 1, "f fahrenheit °f" },
    { "temperature", 1, "k kelvin" },
}

local function find(name)
    local wanted = string.gsub(string.lower(string.match(name, "^%s*(.-)%s*$")), " ", "_")
    local singular = string.gsub(wanted, "s$", "")
    for _, unit in ipairs(units) do
        local names = " " .. unit[3] .. " "
        if string.find(names, " " .. wanted .. " ", 1, true) or string.find(names, " " .. singular .. " ", 1, true) then
            return unit
        end
    end
    return nil
end

local source, target = find(from), find(to)
if source == nil or target == nil then
    local unknown = if source == nil then from else to
    return Outcome.error{
        error_type = "unknown_unit",
        error_message = `there is no unit "{unknown}"; ask units() for all`,
    }
end
if source[1] ~= target[1] then
    local message = `{from} is a unit of {source[1]}, {to} is a unit of {target[1]}`
    return Outcome.error{ error_type = "incompatible_units", error_message = message }
end

local result
if source[1] == "temperature" then
    local scale = string.sub(source[3], 1, 1)
    local celsius = if scale == "f" then (value - 32) * 5 / 9 elseif scale == "k" then value - 273.15 else value
    scale = string.sub(target[3], 1, 1)
    result = if scale == "f" then celsius * 9 / 5 + 32 elseif scale == "k" then celsius + 273.15 else celsius
else
    result = value * source[2] / target[2]
end
-- Ten decimals are more than any unit is measured to, and hide the last bits of binary fractions.
if math.abs(result) >= 0.001 and math.abs(result) < 100000 then
    result = math.round(result * 1e10) / 1e10
end
return result
