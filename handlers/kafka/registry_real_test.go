//go:build testall

package kafka

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestConsumersFindTheSchema: franz-go's own deserializer finds the schema, in a registry that is not ours, and
// the payload behind it, byte for byte.
func TestConsumersFindTheSchema(t *testing.T) {
	t.Parallel()
	brokers, url := testenv.Kafka(t), testenv.SchemaRegistry(t)
	client := schemas(t, url)
	text, err := proto.Marshal(wrapperspb.Int64(300))
	if err != nil {
		t.Fatal(err)
	}
	avro := []byte{0xd8, 0x04} // a record with the long 300
	fromAvro := func(b []byte, v any) error {
		if !bytes.Equal(b, avro) {
			return fmt.Errorf("payload %x", b)
		}
		v.(*order).N = 300 //nolint:forcetypeassert // the test's own
		return nil
	}
	fromProto := func(b []byte, v any) error {
		var w wrapperspb.Int64Value
		err := proto.Unmarshal(b, &w)
		v.(*order).N = int(w.GetValue()) //nolint:forcetypeassert // the test's own
		return err
	}
	const first, nested = "message Order { int64 n = 1; }\n", "message A {}\nmessage B { message C {} message Order { int64 n = 1; } }\n"
	for name, f := range map[string]format{
		"avro":     {kind: sr.TypeAvro, schema: `{"type":"record","name":"Order","fields":[{"name":"n","type":"long"}]}`, payload: avro, decode: fromAvro},
		"json":     {kind: sr.TypeJSON, schema: `{"type":"object","properties":{"n":{"type":"integer"}}}`, payload: []byte(`{"n": 300}`), decode: json.Unmarshal},
		"exactly":  {kind: sr.TypeJSON, schema: `{"type":"object","properties":{"n":{"type":"number"}}}`, payload: []byte(`{"n": 300}`), decode: json.Unmarshal, exactly: true},
		"protobuf": {kind: sr.TypeProtobuf, schema: "syntax = \"proto3\";\n" + first, indexes: []int{0}, payload: text, decode: fromProto},
		"nested":   {kind: sr.TypeProtobuf, schema: "syntax = \"proto3\";\n" + nested, indexes: []int{1, 1}, payload: text, decode: fromProto},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, brokers, 1, nil)
			registered := register(t, client, topic+"-value", f.kind, f.schema)
			f.deliver(t, brokers, topic, url)
			var serde sr.Serde
			options := []sr.EncodingOpt{sr.DecodeFn(f.decode)}
			if f.kind == sr.TypeProtobuf {
				options = append(options, sr.Index(f.indexes...))
			}
			serde.Register(registered.ID, order{}, options...)
			for _, r := range records(t, brokers, topic, 6, readCommitted()) {
				var o order
				if err := serde.Decode(r.Value, &o); err != nil || o.N != 300 {
					t.Errorf("%x is read as %+v, %v", r.Value, o, err)
				}
			}
		})
	}
}

// TestSchemaOfEachEvent: subject and version are made of the event. What the registry does not have is refused
// with its name, and is delivered once it is registered.
func TestSchemaOfEachEvent(t *testing.T) {
	t.Parallel()
	url := testenv.SchemaRegistry(t)
	client, c := schemas(t, url), fake(t, 1)
	prefix := strings.ReplaceAll(t.Name(), "/", "-") + time.Now().Format("-150405.000000-")
	first := register(t, client, prefix+"a", sr.TypeAvro, `"string"`)
	second := register(t, client, prefix+"a", sr.TypeAvro, `["null","string"]`)
	other := register(t, client, prefix+"b", sr.TypeAvro, `"long"`)
	h := open(t, c.ListenAddrs(), with(SchemaRegistry{
		URL: url, Subject: prefix + "{{ .Event.AggregateType }}", Version: `{{ get .Headers "version" | default "latest" }}`,
	}))
	if err := h.Check(t.Context()); err != nil {
		t.Error(err)
	}
	all := events(deliverytest.UpTo(7)...)
	for i, e := range all {
		e.AggregateType = []string{"a", "a", "c", "b", "a", "a", "c"}[i]
		e.Headers = map[string]string{"version": []string{"1", "2", "latest", "latest", "9", "newest", "latest"}[i]}
	}
	all[6].Headers = nil
	errs := h.DeliverBatch(t.Context(), all)
	for i, want := range []string{"delivered", "delivered", "unclear-permanent", "delivered", "unclear-permanent", "permanent", "unclear-permanent"} {
		deliverytest.WantClass(t, errs[i], want)
	}
	deliverytest.WantText(t, errs[2], "no version latest of subject "+prefix+"c", "40401", "register the schema")
	deliverytest.WantText(t, errs[4], "no version 9 of subject "+prefix+"a", "40402")
	deliverytest.WantText(t, errs[5], "subject "+prefix+"a", "must be a number")
	third := register(t, client, prefix+"c", sr.TypeAvro, `"int"`)
	deliverytest.Deliver(t, h, []*delivery.Event{all[6]})
	var serde sr.ConfluentHeader
	var ids []int
	for _, r := range records(t, c.ListenAddrs(), "t", 4) {
		id, rest, err := serde.DecodeID(r.Value)
		if ids = append(ids, id); err != nil || !bytes.HasPrefix(rest, []byte(`{"n": `)) {
			t.Errorf("%q: %v", r.Value, err)
		}
	}
	if want := []int{first.ID, second.ID, other.ID, third.ID}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
}
