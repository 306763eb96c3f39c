package dispatch

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/observe"
)

// TestRefusalsThatComeAndGo: what the database refuses and accepts by turns is logged once a minute, and
// its end as often as its beginning.
func TestRefusalsThatComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &refusals{log: slog.New(slog.NewTextHandler(&log, nil)), observer: &overheard{}}
		logged := func() (begins, ends int) {
			return strings.Count(log.String(), "database refuses"), strings.Count(log.String(), "database accepts")
		}
		for range 28 { // a second's worth, as it was seen
			f.report(observe.Refusal{Part: "shard of mail", Code: "XX001", Err: errors.New("missing chunk")})
			f.report(observe.Refusal{Part: "shard of mail"})
			time.Sleep(time.Second / 28) //nolint:forbidigo // of a synctest bubble
		}
		if begins, ends := logged(); begins != 1 || ends != 1 {
			t.Errorf("logged %d beginnings and %d ends:\n%s", begins, ends, log.String())
		}
		time.Sleep(repeatAfter) //nolint:forbidigo // of a synctest bubble
		f.report(observe.Refusal{Part: "shard of mail", Code: "XX001", Err: errors.New("missing chunk")})
		if begins, ends := logged(); begins != 2 || ends != 1 {
			t.Errorf("a minute later, %d beginnings and %d ends", begins, ends)
		}
		f.report(observe.Refusal{Part: "shard of mail"})
		if begins, ends := logged(); begins != 2 || ends != 2 || len(f.now()) != 0 {
			t.Errorf("at the end, %d beginnings and %d ends", begins, ends)
		}
	})
}
