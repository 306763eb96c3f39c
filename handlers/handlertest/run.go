package handlertest

import "testing"

// Run checks d, one subtest per property. The subtests run one after another,
// because faults are for everybody. Call t.Parallel before it if d is alone
// with its server.
func Run(t *testing.T, d Destination) {
	t.Helper()
	_ = d.withDefaults()
	t.Skip("the properties follow")
}
