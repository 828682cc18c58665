-- units(): the units that convert knows, by kind. units(kind): those of one kind.
local units = {
    length = { "mm", "cm", "m", "km", "in", "ft", "yd", "mi", "nmi" },
    mass = { "mg", "g", "kg", "t", "oz", "lb", "st" },
    speed = { "m/s", "km/h", "mph", "kn", "ft/s" },
    temperature = { "c", "f", "k" },
    time = { "ms", "s", "min", "h", "d", "wk", "y" },
    volume = { "ml", "cl", "l", "m3", "tsp", "tbsp", "cup", "pt", "qt", "gal" },
}
local kind = args[1] or kwargs.kind
if kind == nil or kind == null then
    return units
end
if units[kind] == nil then
    return Outcome.error{ error_type = "unknown_kind", error_message = `there are no units of {kind}` }
end
return units[kind]
