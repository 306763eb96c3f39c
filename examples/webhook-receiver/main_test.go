//go:build testall

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	oldSecret   = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	newSecret   = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="
	otherSecret = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyIQ=="
)

// handled lists the events that a receiver has handled.
type handled struct {
	mu   sync.Mutex
	ids  []string
	fail error
}

func (h *handled) handle(id, _ string, _ []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return h.fail
	}
	h.ids = append(h.ids, id)
	return nil
}

func (h *handled) failWith(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = err
}

func startReceiver(t *testing.T, secrets ...string) (*httptest.Server, *handled) {
	t.Helper()
	var h handled
	r, err := newReceiver(h.handle, secrets...)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return server, &h
}

// deliver sends an event as notifyd does.
func deliver(t *testing.T, url string, secrets ...string) error {
	t.Helper()
	cfg := webhook.Config{URL: url}
	for _, s := range secrets {
		cfg.SigningSecrets = append(cfg.SigningSecrets, handlers.NewSecret(s))
	}
	h, err := webhook.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return h.Deliver(ctx, &delivery.Event{ID: 7, Type: "order.placed", Payload: []byte(`{"order": 7}`), Destination: "shop", Attempt: 1})
}

func TestTakesEachEventOnce(t *testing.T) {
	t.Parallel()
	server, h := startReceiver(t, newSecret)
	for range 3 {
		if err := deliver(t, server.URL, newSecret); err != nil {
			t.Error(err)
		}
	}
	if len(h.ids) != 1 || h.ids[0] != "notifyd-7-shop" {
		t.Errorf("handled %v", h.ids)
	}
}

// TestBatch: a receiver handles each event of a batch once, answers for each, and keeps the order of an aggregate.
func TestBatch(t *testing.T) {
	t.Parallel()
	server, h := startReceiver(t, newSecret)
	sender, err := webhook.NewBatch(webhook.Config{URL: server.URL, SigningSecrets: []handlers.Secret{handlers.NewSecret(newSecret)}, BatchFormat: webhook.BatchCloudEvents})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sender.Close() }()
	events := make([]*delivery.Event, 3)
	for i := range events {
		events[i] = &delivery.Event{ID: int64(i + 1), Type: "order.placed", AggregateType: "order", AggregateID: "A-7", Payload: []byte(`{}`), Destination: "shop"}
	}
	h.failWith(errors.New("no room"))
	for i, err := range sender.DeliverBatch(t.Context(), events) {
		if err == nil || delivery.IsPermanent(err) {
			t.Errorf("event %d while the receiver fails: %v", i+1, err)
		}
	}
	h.failWith(nil)
	for range 2 {
		if errs := sender.DeliverBatch(t.Context(), events); errs != nil {
			t.Errorf("%v", errs)
		}
	}
	if fmt.Sprint(h.ids) != "[1 2 3]" {
		t.Errorf("handled %v", h.ids)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sender, receiver []string
		good             bool
	}{
		{[]string{oldSecret, newSecret}, []string{oldSecret}, true},
		{[]string{oldSecret, newSecret}, []string{newSecret}, true},
		{[]string{newSecret}, []string{oldSecret, newSecret}, true},
		{[]string{otherSecret}, []string{oldSecret, newSecret}, false},
		{nil, []string{newSecret}, false},
	} {
		server, h := startReceiver(t, c.receiver...)
		err := deliver(t, server.URL, c.sender...)
		if (err == nil) != c.good || len(h.ids) == 1 != c.good {
			t.Errorf("%v to %v: %v, handled %v", c.sender, c.receiver, err, h.ids)
		}
		if err != nil && !delivery.IsUnavailable(err) {
			t.Errorf("a wrong secret costs the event an attempt: %v", err)
		}
	}
}

func TestTriedAgainWhenHandlingFails(t *testing.T) {
	t.Parallel()
	server, h := startReceiver(t, newSecret)
	h.failWith(errors.New("the database is down"))
	if err := deliver(t, server.URL, newSecret); !delivery.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	h.failWith(nil)
	if err := deliver(t, server.URL, newSecret); err != nil || len(h.ids) != 1 {
		t.Errorf("got %v, handled %v", err, h.ids)
	}
}

// TestCopyWhileHandling: the answer to a copy must not be that of an event which
// may still fail.
func TestCopyWhileHandling(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan error)
	r, err := newReceiver(func(string, string, []byte) error {
		begun <- struct{}{}
		return <-end
	}, newSecret)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	defer server.Close()
	first := make(chan error)
	go func() { first <- deliver(t, server.URL, newSecret) }()
	<-begun
	if err := deliver(t, server.URL, newSecret); err == nil || delivery.IsPermanent(err) {
		t.Errorf("the copy: %v", err)
	}
	end <- errors.New("no")
	if err := <-first; err == nil {
		t.Error("the failed event was accepted")
	}
}

func TestForgeriesAreRefused(t *testing.T) {
	t.Parallel()
	server, h := startReceiver(t, newSecret)
	body := []byte(`{"order": 7}`)
	for name, c := range map[string]struct {
		key  string
		age  time.Duration
		sent []byte
		id   string
		want int
	}{
		"genuine":       {newSecret, 0, body, "id-1", http.StatusNoContent},
		"tampered":      {newSecret, 0, []byte(`{"order": 8}`), "id-2", http.StatusUnauthorized},
		"other id":      {newSecret, 0, body, "", http.StatusUnauthorized},
		"old":           {newSecret, 6 * time.Minute, body, "id-4", http.StatusUnauthorized},
		"from tomorrow": {newSecret, -24 * time.Hour, body, "id-5", http.StatusUnauthorized},
		"wrong secret":  {otherSecret, 0, body, "id-6", http.StatusUnauthorized},
	} {
		signer, err := standardwebhooks.NewWebhook(c.key)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-c.age)
		signature, err := signer.Sign(c.id, at, body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, bytes.NewReader(c.sent))
		if err != nil {
			t.Fatal(err)
		}
		id := c.id
		if id == "" {
			id = "id-3"
		}
		req.Header.Set("webhook-id", id)
		req.Header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
		req.Header.Set("webhook-signature", signature)
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.want)
		}
	}
	if len(h.ids) != 1 {
		t.Errorf("handled %v", h.ids)
	}
}

func Example() {
	r, err := newReceiver(func(id, eventType string, payload []byte) error {
		fmt.Println(id, eventType, string(payload))
		return nil
	}, newSecret)
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(r)
	defer server.Close()

	h, err := webhook.New(webhook.Config{URL: server.URL, SigningSecrets: []handlers.Secret{handlers.NewSecret(newSecret)}})
	if err != nil {
		panic(err)
	}
	defer func() { _ = io.Closer(h).Close() }()
	err = h.Deliver(context.Background(), &delivery.Event{
		ID: 7, Type: "order.placed", Payload: []byte(`{"order": 7}`), Destination: "shop", Attempt: 1,
	})
	fmt.Println(err)
	// Output:
	// notifyd-7-shop order.placed {"order": 7}
	// <nil>
}
