package dispatch

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

func TestConfigsReportAllMistakesTogether(t *testing.T) {
	t.Parallel()
	if err := (LaneConfig{}).validate(); err != nil {
		t.Errorf("the defaults are invalid: %v", err)
	}
	all := errors.Join(Config{ShutdownTimeout: -1}.validate(), LaneConfig{Lane: delivery.Lane{Concurrency: -1, Batch: -1, Timeout: -1, MaxAttempts: -1, LongestPause: -1, Backoff: delivery.Backoff{Initial: -1, Max: -2, Multiplier: -3}}}.validate()).Error()
	for _, want := range []string{
		"window of 0s", "shutdown timeout",
		"concurrency", "batch", "timeout: -1ns", "max_attempts", "longest_pause", "backoff.initial", "backoff.max", "backoff.multiplier",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in:\n%s", want, all)
		}
	}
}

func TestNewAndAddRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}, nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a dispatcher without limits")
	}
	r, err := New(Config{Window: time.Second}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := delivery.HandlerFunc(takes(0))
	if err := errors.Join(r.Add("a", h, testLane()), r.Route("x", "a")); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no name":     r.Add("", h, testLane()),
		"no handler":  r.Add("b", nil, testLane()),
		"name taken":  r.Add("a", h, testLane()),
		"no limits":   r.Add("b", h, LaneConfig{Lane: delivery.Lane{Concurrency: -1}}),
		"unknown":     r.Route("y", "nobody"),
		"nowhere":     r.Route("y"),
		"one of many": r.Route("y", "a", "nobody"),
	} {
		if !errors.Is(err, ErrDestination) {
			t.Errorf("%s: %v", name, err)
		}
	}
	partial := testLane()
	partial.Backoff = delivery.Backoff{Initial: 2 * time.Hour}
	if err := r.Add("partial", h, partial); err != nil {
		t.Fatal(err)
	}
	if got, want := r.first("partial").dest.Backoff, (delivery.Backoff{Initial: 2 * time.Hour, Max: 2 * time.Hour, Multiplier: 2}); got != want {
		t.Errorf("a partial backoff is %+v, want %+v", got, want)
	}
	if err := r.Route("x", "a"); !errors.Is(err, delivery.ErrPattern) {
		t.Errorf("a second route: %v", err)
	}
	if !r.Routed("x") || r.Routed("y") {
		t.Error("a refused route is in use")
	}
}
