-- expect: raised
-- Loading a module.
return require("./x")
