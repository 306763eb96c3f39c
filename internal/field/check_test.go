package field_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/field"
)

type password string

func (p password) IsZero() bool { return p == "" }

func TestChecks(t *testing.T) {
	t.Parallel()
	const lo, hi = 2, 5
	for _, c := range []struct {
		got  error
		want string // "" for none
	}{
		{field.Word("mode", "", "a", "b"), ""},
		{field.Word("mode", "b", "a", "b"), ""},
		{field.Word("mode", "c", "a", "b"), `mode: unknown word "c": use a, b`},
		{field.Between("n", 0, lo, hi), ""},
		{field.Between("n", lo, lo, hi), ""},
		{field.Between("n", hi, lo, hi), ""},
		{field.Between("n", lo-1, lo, hi), "n: must be 2 to 5, not 1"},
		{field.Between("n", hi+1, lo, hi), "n: must be 2 to 5, not 6"},
		{field.Between("d", time.Minute, time.Second, time.Hour), ""},
		{field.Between("d", time.Millisecond, time.Second, time.Hour), "d: must be 1s to 1h0m0s, not 1ms"},
		{field.Timeout("t", 0, 0, time.Second), ""},
		{field.Timeout("t", time.Hour, 0, time.Second), ""},
		{field.Timeout("t", -1, 0, time.Second), "t: must be positive, such as 1s"},
		{field.Timeout("t", time.Minute, time.Minute, time.Second), ""},
		{field.Timeout("t", time.Hour, time.Minute, time.Second), "t: must be above 0 and at most 1m0s, such as 1s"},
		{field.Timeout("t", -1, time.Minute, time.Second), "t: must be above 0 and at most 1m0s, such as 1s"},
		{field.Login("", password(""), "X"), ""},
		{field.Login("u", password("p"), "X"), ""},
		{field.Login("u", password(""), "X"), "password: missing: username needs one, such as ${env:X}"},
		{field.Login("", password("p"), "X"), "username: missing: password needs one"},
		{field.Under("tls", nil), ""},
		{field.Under("tls", field.Errorf("ca_file", "is gone")), "tls.ca_file: is gone"},
		{field.Under("tls", errors.New("is gone")), "tls: is gone"},
		{
			field.Under("a", errors.Join(field.Errorf("b", "1"), errors.Join(field.Errorf("c.0", "2"), fmt.Errorf("at: %w", field.Errorf("d", "3"))))),
			"a.b: 1\na.c.0: 2\na.d: 3",
		},
	} {
		got := ""
		if c.got != nil {
			got = c.got.Error()
		}
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
