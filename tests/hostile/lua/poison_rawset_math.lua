-- expect: raised
-- Adding by rawset.
rawset(math, "pi", 3)
