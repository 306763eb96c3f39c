package outboxsql_test

import (
	"testing"

	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestModeValidate(t *testing.T) {
	t.Parallel()
	for mode, ok := range map[outboxsql.Mode]bool{"queue": true, "stream": true, "": false, "log": false} {
		if err := mode.Validate(); (err == nil) != ok {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
}
