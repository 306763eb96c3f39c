package lease

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestOneIncident: a failed write of a position is not reported while the log already reports that the database is
// unavailable. A refusal by the database is reported, and so is a write that still fails afterwards.
func TestOneIncident(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := newHolder(Options{}, slog.New(slog.NewTextHandler(&log, nil)), nil, nil)
	lines := func(want int) {
		t.Helper()
		if got := strings.Count(log.String(), "could not be"); got != want {
			t.Errorf("%d lines, want %d:\n%s", got, want, &log)
		}
	}
	h.outage.begin(io.ErrUnexpectedEOF)
	h.refuse(t.Context(), 1, notWritten, io.ErrUnexpectedEOF)
	lines(0)
	h.refuse(t.Context(), 2, notWritten, &pgconn.PgError{Code: "42501"})
	lines(1)
	h.outage.back()
	h.outage.end(0)
	h.refuse(t.Context(), 1, notWritten, io.ErrUnexpectedEOF)
	lines(2)
	h.refuse(t.Context(), 1, notWritten, io.ErrUnexpectedEOF)
	lines(2)
}
