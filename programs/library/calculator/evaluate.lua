-- evaluate("2 * (3 + x)", {x = 4}): the value of an expression. Operators + - * / % ^ with the usual precedence,
-- parentheses, decimals; a name stands for the named argument with that name, or for a number in the memory.
-- The shunting-yard algorithm: numbers wait on one stack, operators on another.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "evaluate needs an expression as text" }
end

local precedence = { ["+"] = 1, ["-"] = 1, ["*"] = 2, ["/"] = 2, ["%"] = 2, ["negate"] = 3, ["^"] = 4 }
local numbers, operators = {}, {}

-- Applies the operator on top; returns why it cannot, if it cannot.
local function apply()
    local operator = table.remove(operators)
    local right = table.remove(numbers)
    if operator == "negate" then
        table.insert(numbers, -right)
        return nil
    end
    local left = table.remove(numbers)
    if operator == "+" then
        table.insert(numbers, left + right)
    elseif operator == "-" then
        table.insert(numbers, left - right)
    elseif operator == "*" then
        table.insert(numbers, left * right)
    elseif operator == "^" then
        table.insert(numbers, left ^ right)
    elseif right == 0 then
        return "division_by_zero"
    elseif operator == "/" then
        table.insert(numbers, left / right)
    else
        table.insert(numbers, left % right)
    end
    return nil
end

local function invalid(what, position)
    return Outcome.error{
        error_type = "invalid_expression",
        error_message = `{what} at position {position} of "{text}"`,
    }
end

local by_zero = { error_type = "division_by_zero", error_message = "cannot divide by zero" }
local position = 1
local wants_operand = true
while true do
    position = string.find(text, "%S", position)
    if position == nil then
        break
    end
    local number = string.match(text, "^%d+%.?%d*", position) or string.match(text, "^%.%d+", position)
    local name = string.match(text, "^[%a_][%w_]*", position)
    local symbol = string.sub(text, position, position)
    if wants_operand then
        if number then
            table.insert(numbers, tonumber(number))
            wants_operand = false
            position += #number
        elseif name then
            local value = kwargs[name] or context[name]
            if type(value) ~= "number" then
                return invalid(`unknown name {name}`, position)
            end
            table.insert(numbers, value)
            wants_operand = false
            position += #name
        elseif symbol == "(" then
            table.insert(operators, symbol)
            position += 1
        elseif symbol == "-" then
            table.insert(operators, "negate")
            position += 1
        elseif symbol == "+" then
            position += 1
        else
            return invalid("a number was expected", position)
        end
    elseif symbol == ")" then
        while #operators > 0 and operators[#operators] ~= "(" do
            if apply() then
                return Outcome.error(by_zero)
            end
        end
        if #operators == 0 then
            return invalid("a parenthesis closes that was never opened", position)
        end
        table.remove(operators)
        position += 1
    elseif precedence[symbol] then
        local rank = precedence[symbol]
        -- ^ groups to the right: 2^3^2 is 2^9.
        while #operators > 0 and operators[#operators] ~= "(" do
            local above = precedence[operators[#operators]]
            if above < rank or (above == rank and symbol == "^") then
                break
            end
            if apply() then
                return Outcome.error(by_zero)
            end
        end
        table.insert(operators, symbol)
        wants_operand = true
        position += 1
    else
        return invalid("an operator was expected", position)
    end
end
if wants_operand then
    return invalid("a number was expected", #text + 1)
end
while #operators > 0 do
    if operators[#operators] == "(" then
        return invalid("a parenthesis is never closed", #text + 1)
    end
    if apply() then
        return Outcome.error(by_zero)
    end
end
return numbers[1]
