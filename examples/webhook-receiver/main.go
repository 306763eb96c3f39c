// Command webhook-receiver receives the requests of notifyd's webhook
// destination. It shows the three duties of a receiver: check the signature and
// the time, drop duplicates, and answer 2xx only when the event is safe. It takes
// single events, and batches of CloudEvents, which it answers with 207.
//
//	WEBHOOK_SECRET=whsec_... go run ./examples/webhook-receiver
//
// It listens on 127.0.0.1:8080, or on the port in PORT.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 1 << 20

// errBehind is the reason of an event that must wait for an earlier one.
var errBehind = errors.New("an earlier event of the aggregate has failed")

// receiver is an http.Handler that passes each event to handle, once.
type receiver struct {
	signers []*standardwebhooks.Webhook // one of them must verify the signature
	handle  func(id, eventType string, payload []byte) error
	seen    seen
}

// newReceiver returns a receiver for secrets: one, or during a rotation two.
func newReceiver(handle func(id, eventType string, payload []byte) error, secrets ...string) (*receiver, error) {
	r := &receiver{handle: handle, seen: seen{keep: 10_000}}
	for _, s := range secrets {
		signer, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			return nil, fmt.Errorf("a secret is not whsec_ and base64: %w", err)
		}
		r.signers = append(r.signers, signer)
	}
	return r, nil
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	// The signature is over these bytes: check it before anything parses them.
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusRequestEntityTooLarge)
		return
	}

	if !r.genuine(body, req.Header) {
		http.Error(w, "signature or time is wrong", http.StatusUnauthorized)
		return
	}

	if req.Header.Get("Content-Type") == "application/cloudevents-batch+json" {
		r.takeBatch(w, body)
		return
	}

	id := req.Header.Get("webhook-id")
	switch first, done := r.seen.begin(id); {
	case done:
		w.WriteHeader(http.StatusNoContent) // delivered before; the answer was lost
		return
	case !first:
		// Another request is handling it, and its outcome is unknown yet.
		w.Header().Set("Retry-After", "1")
		http.Error(w, "being handled", http.StatusConflict)
		return
	}

	err = r.handle(id, req.Header.Get("notifyd-type"), body)
	r.seen.end(id, err)
	if err != nil {
		log.Printf("an event could not be handled: %v", err)
		http.Error(w, "not now", http.StatusServiceUnavailable) // notifyd tries again
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// result is the answer for one event of a batch.
type result struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	Error  string `json:"error,omitempty"`
}

// takeBatch answers 207 with a result for each event. It recognizes duplicates by source and id of each CloudEvent, because
// an event may come again in a batch with another webhook-id.
func (r *receiver) takeBatch(w http.ResponseWriter, body []byte) {
	var events []struct {
		ID, Source, Type, Subject string

		AggregateType string          `json:"aggregatetype"`
		Data          json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &events); err != nil {
		http.Error(w, "the batch is not JSON", http.StatusBadRequest)
		return
	}

	results := make([]result, 0, len(events))
	failed := make(map[[2]string]bool)
	for _, e := range events {
		one := result{ID: e.ID, Status: http.StatusOK}
		aggregate := [2]string{e.AggregateType, e.Subject}
		key := e.Source + " " + e.ID

		switch first, done := r.seen.begin(key); {
		case done:
		case !first:
			one.Status = http.StatusConflict // another request is handling it
		case failed[aggregate]:
			r.seen.end(key, errBehind)
			one.Status = http.StatusFailedDependency
			one.Error = errBehind.Error()
		default:
			err := r.handle(e.ID, e.Type, e.Data)
			r.seen.end(key, err)
			if err != nil {
				log.Printf("event %s could not be handled: %v", e.ID, err)
				one.Status = http.StatusServiceUnavailable
				one.Error = "not now"
			}
		}

		if one.Status != http.StatusOK && e.Subject != "" { // keep the order of the aggregate
			failed[aggregate] = true
		}
		results = append(results, one)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMultiStatus)
	_ = json.NewEncoder(w).Encode(results)
}

// genuine reports whether one of the secrets has signed the request within the
// last five minutes.
func (r *receiver) genuine(body []byte, header http.Header) bool {
	for _, signer := range r.signers {
		if signer.Verify(body, header) == nil {
			return true
		}
	}
	return false
}

// seen remembers the latest ids. In production, insert webhook-id into a table
// with a unique index, in the transaction that does the work: then a crash
// between the two cannot happen.
type seen struct {
	keep int

	mu    sync.Mutex
	ids   map[string]bool // true when it was handled
	order []string        // handled ids, oldest first
}

// begin reports whether this is the first request with an id, or else whether the first
// one was handled.
func (s *seen) begin(id string) (first, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done, known := s.ids[id]
	if known {
		return false, done
	}

	if s.ids == nil {
		s.ids = make(map[string]bool)
	}
	s.ids[id] = false
	return true, false
}

// end records the outcome of an id.
func (s *seen) end(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.ids, id)
		return
	}

	s.ids[id] = true
	s.order = append(s.order, id)
	if len(s.order) > s.keep {
		delete(s.ids, s.order[0])
		s.order = s.order[1:]
	}
}

func main() {
	secrets := strings.Fields(os.Getenv("WEBHOOK_SECRET"))
	if len(secrets) == 0 {
		log.Fatal(`set WEBHOOK_SECRET; make one with: echo "whsec_$(openssl rand -base64 32)"`)
	}
	r, err := newReceiver(func(id, eventType string, payload []byte) error {
		fmt.Println(id, eventType, string(payload))
		return nil
	}, secrets...)
	if err != nil {
		log.Fatal(err)
	}

	address := "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "8080")
	server := &http.Server{
		Addr:         address,
		Handler:      r,
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 10 * time.Second,
		IdleTimeout:  2 * time.Minute,
	}
	fmt.Printf("listening on http://%s\n", address)
	log.Fatal(server.ListenAndServe())
}
