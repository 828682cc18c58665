-- expect: time
-- An iterator that never returns nil.
for x in function() return 1 end do end
