//go:build testall

// Package node holds the test of receiver.mjs.
package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	oldSecret   = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	newSecret   = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="
	otherSecret = "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyIQ=="
)

const patience = 2 * time.Minute

// program is a running receiver.mjs.
type program struct {
	url   string
	lines chan string // of its standard output
}

// next returns the next event that was handled.
func (p *program) next(t *testing.T) string {
	t.Helper()
	return testenv.Receive(t, patience, "a line of the receiver", p.lines)
}

// startReceiver starts the program; the end of the test ends it.
func startReceiver(t *testing.T, secrets string) *program {
	t.Helper()
	node := testenv.Program(t, "node")
	cmd := exec.Command(node, "receiver.mjs")
	cmd.Env = []string{"WEBHOOK_SECRET=" + secrets, "PORT=0"}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{lines: make(chan string, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the receiver: %v", err)
		}
	})
	var first struct{ Listening int }
	if line := p.next(t); json.Unmarshal([]byte(line), &first) != nil || first.Listening == 0 {
		t.Fatalf("the receiver says %s", line)
	}
	p.url = fmt.Sprintf("http://127.0.0.1:%d/", first.Listening)
	return p
}

func deliver(t *testing.T, url string, id int64, secrets ...string) error {
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
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the receiver does not answer"))
	defer cancel()
	return h.Deliver(ctx, &delivery.Event{
		ID: id, Type: "order.placed", Payload: []byte(`{"order": "ü"}`), Destination: "shop", Attempt: 1,
	})
}

func TestReceiver(t *testing.T) {
	t.Parallel()
	p := startReceiver(t, oldSecret+" "+newSecret)
	for id, secrets := range map[int64][]string{1: {oldSecret}, 2: {newSecret}, 3: {otherSecret, newSecret}} {
		for range 2 { // the second one is a duplicate
			if err := deliver(t, p.url, id, secrets...); err != nil {
				t.Errorf("%d: %v", id, err)
			}
		}
		if line, want := p.next(t), fmt.Sprintf(`{"id":"notifyd-%d-shop","type":"order.placed","payload":{"order":"ü"}}`, id); line != want {
			t.Errorf("got  %s\nwant %s", line, want)
		}
	}
	for id, secrets := range map[int64][]string{4: {otherSecret}, 5: nil} {
		if err := deliver(t, p.url, id, secrets...); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("%d: %v", id, err)
		}
	}
	if err := deliver(t, p.url, 6, newSecret); err != nil {
		t.Error(err)
	}
	if line := p.next(t); !strings.Contains(line, "notifyd-6-shop") {
		t.Errorf("a refused or repeated event was handled: %s", line)
	}
}

func TestForgeriesAreRefused(t *testing.T) {
	t.Parallel()
	p := startReceiver(t, newSecret)
	const body = `{"order": 7}`
	for name, c := range map[string]struct {
		key, sent string
		age       time.Duration
		want      int
	}{
		"genuine":       {newSecret, body, 0, http.StatusNoContent},
		"tampered":      {newSecret, `{"order": 8}`, 0, http.StatusUnauthorized},
		"old":           {newSecret, body, 6 * time.Minute, http.StatusUnauthorized},
		"from tomorrow": {newSecret, body, -24 * time.Hour, http.StatusUnauthorized},
		"wrong secret":  {otherSecret, body, 0, http.StatusUnauthorized},
	} {
		signer, err := standardwebhooks.NewWebhook(c.key)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-c.age)
		signature, err := signer.Sign("id-"+name, at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := post(t, p.url, c.sent, headers("id-"+name, at, signature)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := post(t, p.url, body, headers("id", time.Now(), "v1,")); got != http.StatusUnauthorized {
		t.Errorf("no signature: %d", got)
	}
}

func headers(id string, at time.Time, signature string) http.Header {
	h := make(http.Header)
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	h.Set("webhook-signature", signature)
	return h
}

func post(t *testing.T, url, body string, header http.Header) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
