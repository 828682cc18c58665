-- expect: raised
-- Looking for the marks.
return marks.outcome
