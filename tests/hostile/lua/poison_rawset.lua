-- expect: raised
-- Replacing by rawset.
rawset(string, "upper", nil)
