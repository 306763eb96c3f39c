package idset

// SQLHas returns the condition that a watermark has an id, from expressions for its head, its open ids and the id:
// [Watermark.Has] in SQL.
func SQLHas(head, open, id string) string {
	return `(` + id + ` <= ` + head + ` AND NOT ` + open + ` @> ` + id + `)`
}

// SQLLowest returns the highest id up to which a watermark has all ids: [Watermark.Lowest] in SQL.
func SQLLowest(head, open string) string { return `least(` + head + `, lower(` + open + `) - 1)` }

// SQLMissing returns the multirange of the ids up to top, or up to the head if that is higher, that a watermark does not
// have: [Watermark.Missing] in SQL.
func SQLMissing(head, open, top string) string {
	return `(` + open + ` + int8multirange(int8range(` + head + `, greatest(` + head + `, ` + top + `), '(]')))`
}
