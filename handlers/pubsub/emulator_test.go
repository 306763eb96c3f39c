//go:build testall

package pubsub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

var topics atomic.Int64

// topic is a topic of the emulator.
type topic struct {
	endpoint, name string
	client         *http.Client
}

// newTopic makes a topic, which refuses messages with the word in their data; "" is
// for none.
func newTopic(tb testing.TB, refuse string) *topic {
	tb.Helper()
	t := &topic{
		endpoint: testenv.PubSub(tb),
		name:     fmt.Sprintf("t-%d-%d", os.Getpid(), topics.Add(1)),
		// Its connections are made within tests that look for connections left behind.
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	in := map[string]any{}
	if refuse != "" {
		in["labels"] = map[string]string{"refuse": refuse}
	}
	body, err := json.Marshal(in)
	if err != nil {
		tb.Fatal(err)
	}
	t.do(tb, http.MethodPut, "", body)
	return t
}

func (t *topic) url() string { return t.endpoint + "/v1/projects/shop/topics/" + t.name }

func (t *topic) config() Config {
	return Config{Project: "shop", Topic: t.name, Endpoint: t.endpoint}
}

func (t *topic) do(tb testing.TB, method, verb string, body []byte) []byte {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, t.url()+verb, bytes.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing was written
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tb.Fatalf("%s %s: %s %s, %v", method, verb, resp.Status, answer, err)
	}
	return answer
}

// messages returns all messages so far, in the order of their arrival.
func (t *topic) messages(tb testing.TB) []stored {
	tb.Helper()
	var out struct{ Messages []stored }
	if err := json.Unmarshal(t.do(tb, http.MethodGet, ":messages", nil), &out); err != nil {
		tb.Fatal(err)
	}
	return out.Messages
}

// ids returns the ids of all events that have arrived.
func (t *topic) ids(tb testing.TB) []int64 {
	tb.Helper()
	var ids []int64
	for _, m := range t.messages(tb) {
		id, err := strconv.ParseInt(m.Attributes["notifyd-id"], 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
