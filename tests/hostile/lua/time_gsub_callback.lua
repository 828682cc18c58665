-- expect: time
-- A replacement function that loops.
return (("x"):gsub("x", function() while true do end end))
