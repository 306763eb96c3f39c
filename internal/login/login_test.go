package login_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/login"
)

// TestPace: parts of a program that try all the time log in five times in the first half hour, and then twice
// in each, whatever their number. Other credentials are tried at once.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g login.Gate
		refused := errors.New("wrong password")
		logins := func(who string, d time.Duration) (n int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) { //nolint:forbidigo // of a synctest bubble
				for range 8 {
					switch err := g.Refusal(who); {
					case err == nil:
						n++
						g.Refused(who, refused)
					case !errors.Is(err, refused):
						t.Error(err)
					}
				}
			}
			return n
		}
		if n := logins("a", time.Minute*3/4); n != 1 {
			t.Errorf("%d logins at first", n)
		}
		if n := logins("a", 30*time.Minute-time.Minute*3/4); n < 3 || n > 5 {
			t.Errorf("%d logins in the first half hour", n+1)
		}
		if n := logins("a", 3*time.Hour); n < 12 || n > 16 {
			t.Errorf("%d logins in three hours", n)
		}
		if n := logins("b", time.Second); n != 1 {
			t.Errorf("%d logins with other credentials", n)
		}
		g.Accepted()
		if n := logins("b", time.Second); n != 1 {
			t.Errorf("%d logins after one that was accepted", n)
		}
	})
}
