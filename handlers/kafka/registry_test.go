package kafka

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// schemas registers schemas, and reads them as consumers do.
func schemas(t *testing.T, url string) *sr.Client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	client, err := sr.NewClient(sr.URLs(url), sr.HTTPClient(&http.Client{Transport: transport, Timeout: patience}))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func register(t *testing.T, client *sr.Client, subject string, kind sr.SchemaType, text string) sr.SubjectSchema {
	t.Helper()
	s, err := client.CreateSchema(t.Context(), subject, sr.Schema{Schema: text, Type: kind})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func with(r SchemaRegistry) func(*Config) { return func(c *Config) { c.SchemaRegistry = &r } }

// order is what all payloads of TestConsumersFindTheSchema say.
type order struct {
	N int `json:"n"`
}

// format is how an order is written, and read.
type format struct {
	kind    sr.SchemaType
	schema  string
	indexes []int // of the message in the schema
	payload []byte
	decode  func([]byte, any) error
	exactly bool
}

// deliver delivers three events by the latest version, and again by its number.
func (f format) deliver(t *testing.T, brokers []string, topic, url string) {
	t.Helper()
	all := events(1, 2, 3)
	for _, e := range all {
		e.Payload = f.payload
	}
	for _, version := range []string{"latest", "1"} {
		h := open(t, brokers, to(topic), with(SchemaRegistry{URL: url, Version: version, MessageIndexes: f.indexes}), func(cfg *Config) {
			if cfg.ExactlyOnce = f.exactly; f.exactly {
				cfg.TransactionalID, cfg.PositionsTopic = "txn-"+topic+version, "positions-"+topic
			}
		})
		if f.exactly {
			begin(t, h, "")
		}
		deliverytest.Deliver(t, h, all)
		if err := h.Check(t.Context()); err != nil {
			t.Errorf("version %s: %v", version, err)
		}
	}
}

// pretender is a registry that answers as a test wants.
type pretender struct {
	*httptest.Server

	mu     sync.Mutex
	asked  []string // paths
	answer http.HandlerFunc
}

func pretend(t *testing.T, answer http.HandlerFunc) *pretender {
	t.Helper()
	p := &pretender{answer: answer}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.URL.Path)
		answer := p.answer
		p.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *pretender) become(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *pretender) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the handler misses what is missing
	}
}

// TestRegistryFaults: what is not about a schema is a fault of the destination: nothing is written, no attempt
// counts, and all is delivered when the registry works.
func TestRegistryFaults(t *testing.T) {
	t.Parallel()
	well := says(http.StatusOK, `{"id": 7}`)
	elsewhere := pretend(t, well)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		class  string
		words  []string
	}{
		"wrong password": {says(http.StatusUnauthorized, `{"error_code": 40101, "message": "not hush"}`), "unavailable", []string{"40101", "check username and password"}},
		"no right":       {says(http.StatusForbidden, `{"error_code": 40301, "message": "no"}`), "unavailable", []string{"40301", "allow this user"}},
		"wrong path":     {says(http.StatusNotFound, `<html>`), "unavailable", []string{"404 Not Found", "schema_registry.url"}},
		"wrong server":   {says(http.StatusOK, `<html>`), "unavailable", []string{"not one of a schema registry", "schema_registry.url"}},
		"no id":          {says(http.StatusOK, `{}`), "unavailable", []string{"not one of a schema registry"}},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		}, "unavailable", []string{"302 Found", "schema_registry.url"}},
		"redirect to nowhere": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://ann:hush@nowhere:port/")
			w.WriteHeader(http.StatusFound)
		}, "unavailable", []string{"302 Found", "schema_registry.url"}},
		"its own fault": {says(http.StatusInternalServerError, `{"error_code": 50001, "message": "store"}`), "unavailable", []string{"50001", "store"}},
		"busy":          {says(http.StatusServiceUnavailable, ``), "unavailable", []string{"503"}},
		"too many":      {says(http.StatusTooManyRequests, `{}`), "unavailable", []string{"429"}},
		"cut off":       {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unavailable", []string{"EOF"}},
		"unprocessable": {says(http.StatusUnprocessableEntity, `{"error_code": 42202, "message": "The version is not valid"}`), "unavailable", []string{"42202", "subject t-value", "register the schema"}},
		"no subject":    {says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`), "unavailable", []string{"40401", "subject t-value", "register the schema"}},
		"deleted":       {says(http.StatusNotFound, `{"error_code": 40404, "message": "soft deleted"}`), "unavailable", []string{"40404", "subject t-value"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, p := fake(t, 1), pretend(t, c.answer)
			h := open(t, cluster.ListenAddrs(), with(SchemaRegistry{URL: p.URL + "/", Username: "ann", Password: handlers.NewSecret("hush")}))
			all := events(1, 2)
			errs := append(h.DeliverBatch(t.Context(), all), h.Check(t.Context()))
			for _, err := range errs[:2] {
				deliverytest.WantClass(t, err, c.class)
			}
			for _, err := range errs {
				deliverytest.WantText(t, err, c.words...)
				if strings.Contains(err.Error(), "hush") {
					t.Errorf("%v tells the password", err)
				}
			}
			p.become(well)
			deliverytest.Deliver(t, h, all)
			var got []string
			for _, r := range records(t, cluster.ListenAddrs(), "t", 2) {
				got = append(got, string(r.Value))
			}
			if want := []string{"\x00\x00\x00\x00\a{\"n\": 1}", "\x00\x00\x00\x00\a{\"n\": 2}"}; !slices.Equal(got, want) {
				t.Errorf("written: %q", got)
			}
		})
	}
	if n := len(elsewhere.requests()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestRegistryRefusesWhatIsOfTheEvent: a part of the schema's name that is made of the event may be wrong for this event alone.
// What is the same for all events is a fault of the destination.
func TestRegistryRefusesWhatIsOfTheEvent(t *testing.T) {
	t.Parallel()
	const subject, version = "{{ .Event.Type }}", "{{ .Payload.n }}"
	noSubject := says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`)
	noVersion := says(http.StatusNotFound, `{"error_code": 40402, "message": "none"}`)
	denied := says(http.StatusForbidden, `{"error_code": 40301, "message": "no"}`)
	for name, c := range map[string]struct {
		cfg    SchemaRegistry
		answer http.HandlerFunc
		class  string
	}{
		"the event's subject is missing":     {SchemaRegistry{Subject: subject}, noSubject, "unclear-permanent"},
		"the event's subject is denied":      {SchemaRegistry{Subject: subject}, denied, "unclear-retry"},
		"no version of the event's subject":  {SchemaRegistry{Subject: subject}, noVersion, "unclear-permanent"},
		"the event's version is missing":     {SchemaRegistry{Version: version}, noVersion, "unclear-permanent"},
		"the subject of all is missing":      {SchemaRegistry{Version: version}, noSubject, "unavailable"},
		"the subject of all is denied":       {SchemaRegistry{Version: version}, denied, "unavailable"},
		"the version of all is missing":      {SchemaRegistry{Version: "3"}, noVersion, "unavailable"},
		"a subject by the topic of all":      {SchemaRegistry{}, noSubject, "unavailable"},
		"a named subject that all have":      {SchemaRegistry{Subject: "orders"}, noSubject, "unavailable"},
		"a named subject that all may not":   {SchemaRegistry{Subject: "orders"}, denied, "unavailable"},
		"a subject by the topic of an event": {SchemaRegistry{MessageIndexes: []int{1}}, noSubject, "unclear-permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := c.cfg
			cfg.URL = pretend(t, c.answer).URL
			h := open(t, fake(t, 1).ListenAddrs(), with(cfg), func(k *Config) {
				if len(cfg.MessageIndexes) > 0 {
					k.Topic = `{{ "t" }}`
				}
			})
			deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), events(1, 2)), deliverytest.Times(c.class, 2))
		})
	}
}

// TestSubjectOfDots: an event whose subject cannot be a part of a URL is at fault, and not the registry, which would be asked for
// something else.
func TestSubjectOfDots(t *testing.T) {
	t.Parallel()
	p := pretend(t, says(http.StatusNotFound, `{"error_code": 404, "message": "HTTP 404 Not Found"}`))
	h := open(t, fake(t, 1).ListenAddrs(), with(SchemaRegistry{URL: p.URL, Subject: "{{ .Event.Type }}"}))
	all := events(1, 2)
	all[0].Type, all[1].Type = ".", ".."

	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all), "permanent permanent") //nolint:dupword // answers
	if asked := p.requests(); len(asked) != 0 {
		t.Errorf("asked %v", asked)
	}
}

// TestRefusedSchemaHoldsUpItsAggregate: an unclear refusal is not final, so no event of the aggregate goes before it. Others
// do, and all do where no order is promised.
func TestRefusedSchemaHoldsUpItsAggregate(t *testing.T) {
	t.Parallel()
	p := pretend(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "bad") {
			says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`)(w, r)
			return
		}
		says(http.StatusOK, `{"id": 7}`)(w, r)
	})
	for name, change := range map[string]func(*Config){
		"plain": func(*Config) {}, "transactional": func(c *Config) { c.Transactional = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 2)
			h := open(t, c.ListenAddrs(), change, with(SchemaRegistry{URL: p.URL, Subject: "{{ .Event.Type }}"}))
			all := events(deliverytest.UpTo(6)...)
			for i, e := range all {
				e.AggregateID = fmt.Sprint("k", i%2)
			}
			all[2].Type = "bad"
			deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all), "delivered delivered unclear-permanent delivered unavailable delivered") //nolint:dupword // answers
			unordered := delivery.WithCall(t.Context(), delivery.Call{Unordered: true})
			deliverytest.WantClasses(t, h.DeliverBatch(unordered, all[2:]), "unclear-permanent delivered delivered delivered") //nolint:dupword // answers
		})
	}
}

// TestRegistryThatHangs: the call ends with its context, whose end is no fault of the registry, or else with
// delivery_timeout.
func TestRegistryThatHangs(t *testing.T) {
	t.Parallel()
	asked, done := make(chan struct{}, 10), make(chan struct{})
	p := pretend(t, func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-done })
	defer close(done)
	c := fake(t, 1)
	h := open(t, c.ListenAddrs(), with(SchemaRegistry{URL: p.URL}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	for _, err := range h.DeliverBatch(ctx, events(1, 2)) {
		deliverytest.WantClass(t, err, "relay")
	}
	short := open(t, c.ListenAddrs(), with(SchemaRegistry{URL: p.URL}), func(c *Config) { c.DeliveryTimeout = 200 * time.Millisecond })
	err := short.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "schema registry: delivery_timeout")
}

// TestRegistryFaultWithExactlyOnce: the engine reads the position again, and goes on.
func TestRegistryFaultWithExactlyOnce(t *testing.T) {
	t.Parallel()
	c, p := fake(t, 1), pretend(t, says(http.StatusBadGateway, ""))
	h := exactlyTo(t, c.ListenAddrs(), "t", with(SchemaRegistry{URL: p.URL}))
	begin(t, h, "")
	wantReopen(t, h.DeliverBatch(t.Context(), events(1, 2)))
	p.become(says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`))
	begin(t, h, "")
	wantReopen(t, h.DeliverBatch(t.Context(), events(1)))
	p.become(says(http.StatusOK, `{"id": 7}`))
	begin(t, h, "")
	deliverytest.Deliver(t, h, events(1))
	begin(t, h, "1")
}

// TestLatestIsAskedForAgain: once a minute, and a numbered version never.
func TestLatestIsAskedForAgain(t *testing.T) {
	t.Parallel()
	p := pretend(t, says(http.StatusOK, `{"id": 1}`))
	r, err := newRegistry((&SchemaRegistry{URL: p.URL}).withDefaults(), "", newSecrets(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r.now = func() time.Time { return now }
	wantID := func(version string, id byte) {
		t.Helper()
		if header, err := r.header(t.Context(), schemaRef{"s", version}); err != nil || !bytes.Equal(header, []byte{0, 0, 0, 0, id}) {
			t.Errorf("header %x, %v", header, err)
		}
	}
	wantID("latest", 1)
	wantID("3", 1)
	p.become(says(http.StatusOK, `{"id": 2, "schemaType": "AVRO"}`))
	now = now.Add(latestFor - 1)
	wantID("latest", 1)
	now = now.Add(1)
	wantID("latest", 2)
	wantID("latest", 2)
	p.become(says(http.StatusServiceUnavailable, ""))
	wantID("3", 1)
	now = now.Add(latestFor)
	if _, err := r.header(t.Context(), schemaRef{"s", "latest"}); !is[*registryError](err) {
		t.Errorf("an id that may be out of date: %v", err)
	}
	want := []string{"/subjects/s/versions/latest", "/subjects/s/versions/3", "/subjects/s/versions/latest", "/subjects/s/versions/latest"}
	if got := p.requests(); !slices.Equal(got, want) {
		t.Errorf("asked for %q", got)
	}
}

// TestMissingSchemaIsAskedForOnce in a batch.
func TestMissingSchemaIsAskedForOnce(t *testing.T) {
	t.Parallel()
	p := pretend(t, says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`))
	h := open(t, fake(t, 1).ListenAddrs(), with(SchemaRegistry{URL: p.URL, Subject: "{{ .Event.Type }}"}))
	for _, err := range h.DeliverBatch(t.Context(), events(deliverytest.UpTo(50)...)) {
		deliverytest.WantClass(t, err, "unclear-permanent")
	}
	if got := p.requests(); len(got) != 1 {
		t.Errorf("%d requests", len(got))
	}
}

// TestHeaderIsConfluents compares our bytes with those of franz-go's serializer.
func TestHeaderIsConfluents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint32().Draw(t, "id")
		path := rapid.SliceOfN(rapid.IntRange(0, maxIndex), 1, 4).Draw(t, "path")
		server := httptest.NewServer(says(http.StatusOK, fmt.Sprintf(`{"id": %d, "schemaType": "PROTOBUF"}`, id)))
		defer server.Close()
		r, err := newRegistry(&SchemaRegistry{URL: server.URL, MessageIndexes: path}, "", newSecrets(Config{}))
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.header(context.Background(), schemaRef{"s", "1"})
		if err != nil {
			t.Fatal(err)
		}
		want, err := (&sr.ConfluentHeader{}).AppendEncode(nil, int(id), path)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("header %x, want %x, %v", got, want, err)
		}
	})
}

func TestPreviewNamesTheSchema(t *testing.T) {
	t.Parallel()
	h := open(t, []string{"a"}, with(SchemaRegistry{URL: "http://127.0.0.1:1", Version: "{{ .Event.ID }}"}))
	text, err := h.Preview(events(3)[0])
	if err != nil || !strings.Contains(text, "version 3 of subject t-value") || !strings.Contains(text, `"n": 3`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestValidateSchemaRegistry(t *testing.T) {
	t.Parallel()
	password := handlers.NewSecret("hush")
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"least":           {func(*Config) {}, ""},
		"no url":          {func(c *Config) { c.SchemaRegistry.URL = "" }, "schema_registry.url"},
		"no http":         {func(c *Config) { c.SchemaRegistry.URL = "registry:8081" }, "schema_registry.url"},
		"user in the url": {func(c *Config) { c.SchemaRegistry.URL = "https://a:hush@r.example.com" }, "schema_registry.url"},
		"no password":     {func(c *Config) { c.SchemaRegistry.Username = "ann" }, "schema_registry.password"},
		"readable":        {func(c *Config) { c.SchemaRegistry.Username, c.SchemaRegistry.Password = "ann", password }, "schema_registry.url"},
		"readable on purpose": {func(c *Config) {
			c.SchemaRegistry.Username, c.SchemaRegistry.Password, c.SchemaRegistry.AllowUnencrypted = "ann", password, true
		}, ""},
		"tls without effect": {func(c *Config) { c.SchemaRegistry.TLS = &handlers.TLS{} }, "schema_registry.tls"},
		"no certificate": {func(c *Config) {
			c.SchemaRegistry.URL, c.SchemaRegistry.TLS = "https://r.example.com", &handlers.TLS{CAFile: "nowhere.pem"}
		}, "schema_registry.tls.ca_file"},
		"broken templates": {func(c *Config) { c.SchemaRegistry.Subject, c.SchemaRegistry.Version = "{{", "{{ nope }}" }, "schema_registry.subject schema_registry.version"},
		"dots as subject":  {func(c *Config) { c.SchemaRegistry.Subject = ".." }, "schema_registry.subject"},
		"no version":       {func(c *Config) { c.SchemaRegistry.Version = "0" }, "schema_registry.version"},
		"no index":         {func(c *Config) { c.SchemaRegistry.MessageIndexes = []int{-1} }, "schema_registry.message_indexes"},
		"another value":    {func(c *Config) { c.Format = handlers.FormatCloudEventsStructured }, "format"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Brokers: []string{"kafka.example.com:9092"}, Topic: "t", SchemaRegistry: &SchemaRegistry{URL: "http://r.example.com:8081"}}
			c.change(&cfg)
			h, err := New(cfg)
			if err == nil {
				err = h.Close()
			}
			var paths []string
			for _, e := range field.Split(err) {
				paths = append(paths, field.Path(e))
			}
			if got := strings.Join(paths, " "); got != c.want {
				t.Errorf("mistakes in %q, want %q: %v", got, c.want, err)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%v tells the password", err)
			}
		})
	}
}

// TestRegistryCertificate: the certificate is checked, and the cure names the registry's own setting.
func TestRegistryCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(says(http.StatusOK, `{"id": 7}`))
	t.Cleanup(server.Close)
	h := open(t, fake(t, 1).ListenAddrs(), with(SchemaRegistry{URL: server.URL}))
	err := h.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "schema_registry.tls")
}
