package notifyd

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestRegistrationErrorsHaveCures: what a program registers wrongly is answered with what to write.
func TestRegistrationErrorsHaveCures(t *testing.T) {
	t.Parallel()
	r, err := New(tables(t, outboxsql.ModeQueue), Config{})
	if err != nil {
		t.Fatal(err)
	}
	handler := delivery.HandlerFunc(works)
	if err := r.Handle("order.*", Destination{Name: "mail", Handler: handler}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no name":       {r.Add(Destination{Handler: handler}), "it has no name: give it one that stays"},
		"no handler":    {r.Add(Destination{Name: "crm"}), "it has no handler: set Handler"},
		"twice":         {r.Add(Destination{Name: "mail", Handler: handler}), "add it once, and route other event types to it with Route"},
		"unknown":       {r.Route("user.*", "crm"), "nothing has this name: add the destination first (there are mail)"},
		"nowhere":       {r.Route("user.*"), "none is named: name one or more"},
		"a route again": {r.Route("order.*", "mail"), "it has a route: name all its destinations in one call"},
		"no pattern":    {r.Route("order*", "mail"), "order*"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, c.err, c.want)
		}
	}
}

// TestNoDestinations: a relay that can deliver nothing says so.
func TestNoDestinations(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r, err := New(tables(t, outboxsql.ModeQueue), Config{UntilIdle: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(context.WithoutCancel(t.Context())); err != nil || !strings.Contains(log.String(), "relay has no destinations") {
		t.Errorf("Run = %v\n%s", err, log.String())
	}
}
