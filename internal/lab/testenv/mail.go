package testenv

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// Mail starts a mail server for this test alone, which keeps its port over a Restart. The end of the test stops it.
func Mail(tb testing.TB, o smtpsink.Options) *smtpsink.Sink {
	tb.Helper()
	o.Listen = freeport.At
	sink, err := smtpsink.Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := sink.Close(); err != nil {
			tb.Error(err)
		}
	})
	return sink
}
