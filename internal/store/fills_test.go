package store

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// forEachFill runs a test on each state that the tables may be in when a plan is made.
func forEachFill(t *testing.T, f func(t *testing.T, d *db)) {
	t.Helper()
	for name, statements := range testenv.Fills() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			for _, statement := range statements {
				d.exec(statement)
			}
			f(t, d)
		})
	}
}
