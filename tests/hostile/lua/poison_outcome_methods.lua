-- expect: raised
-- Methods of outcomes with another self.
return Outcome.ok(1).unwrap.x
