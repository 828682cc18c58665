return if then (
