// Package awstest has the code that the tests of the AWS destinations share.
package awstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// Main is [testenv.Main] without the AWS settings of this machine.
func Main(m *testing.M) {
	isolate()
	testenv.Main(m)
}

func isolate() {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}

	for name, value := range map[string]string{
		"AWS_CONFIG_FILE":             os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_EC2_METADATA_DISABLED":   "true",
	} {
		_ = os.Setenv(name, value)
	}
}

// patience bounds a test that waits for something that must happen.
const patience = 2 * time.Minute

// Secret is a secret access key of no account.
const Secret = "correct/horse+battery/staple0123456789ab"

// Region is the region of all tests.
const Region = "eu-central-1"

// Access returns a complete configuration for the server at endpoint.
func Access(endpoint string) handlers.AWS {
	return handlers.AWS{Endpoint: endpoint, Region: Region, AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: handlers.NewSecret(Secret)}
}

// Context returns a context with the deadline of patience.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	tb.Cleanup(cancel)
	return ctx
}

// Event returns an event of the aggregate A-7.
func Event(id int64, payload string) *delivery.Event {
	return deliverytest.Event("orders", id, payload)
}

// Events returns events of one aggregate, with the ids 1 to n.
func Events(n int) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = Event(int64(i)+1, fmt.Sprintf(`{"n": %d}`, i))
	}
	return all
}

// Big returns an event whose payload is an object of at least size bytes.
func Big(id int64, size int) *delivery.Event {
	return Event(id, `{"x": "`+strings.Repeat("x", size)+`"}`)
}

// Asked is a request to a [Fake].
type Asked struct {
	Operation string
	Body      []byte
}

// Said is an answer of a [Fake].
type Said struct {
	Status int
	Body   string
	Header map[string]string
}

// Fake is a server whose answers the test chooses.
type Fake struct {
	*httptest.Server
	mu    sync.Mutex
	asked []Asked
}

// StartFake starts a server that sends the results of answer. n counts the requests from 0. The operation comes from the
// header X-Amz-Target or, for a service with the query protocol, from the form.
func StartFake(tb testing.TB, answer func(n int, a Asked) Said) *Fake {
	tb.Helper()
	f := &Fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}

		_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		a := Asked{Operation: operation, Body: body}

		f.mu.Lock()
		n := len(f.asked)
		f.asked = append(f.asked, a)
		f.mu.Unlock()

		said := answer(n, a)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		for name, value := range said.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(max(said.Status, http.StatusOK))
		_, _ = io.WriteString(w, said.Body)
	}))

	tb.Cleanup(f.Close)
	return f
}

// Asked returns the requests so far.
func (f *Fake) Asked() []Asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// Problem is the refusal of a request, in a service with a JSON protocol.
func Problem(status int, code, text string) Said {
	body, err := json.Marshal(map[string]string{"__type": "com.amazonaws#" + code, "message": text})
	if err != nil {
		panic(err)
	}
	return Said{Status: status, Body: string(body)}
}
