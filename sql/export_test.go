package outboxsql

// GrantedTables returns the tables that Grants knows.
func GrantedTables() (names []string) {
	for _, g := range tableGrants() {
		names = append(names, g.table)
	}
	return names
}
