package delivery_test

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

func TestDecodeJSON(t *testing.T) {
	t.Parallel()
	for kind, isJSON := range map[string]bool{
		"": true, "application/json": true, "application/json; charset=utf-8": true, "APPLICATION/JSON": true, "application/vnd.acme+json;v=1": true,
		"application/octet-stream": false, "avro/binary": false, "application/jsonp": false, "text/json": false, "json": false, "a/b; x=+json": false,
	} {
		e := &delivery.Event{ID: 42, Payload: []byte(`{"n": 7}`), ContentType: kind}
		if e.IsJSON() != isJSON {
			t.Errorf("%q is JSON: %t, want %t", kind, e.IsJSON(), isJSON)
		}
		var to struct{ N int }
		err := e.DecodeJSON(&to)
		switch {
		case isJSON && (err != nil || to.N != 7):
			t.Errorf("%q: %+v, %v", kind, to, err)
		case !isJSON && (!delivery.IsPermanent(err) || !strings.Contains(err.Error(), "event 42: the payload is not JSON: its content type is "+kind) || to.N != 0):
			t.Errorf("%q: %+v, %v", kind, to, err)
		}
	}
	if err := (&delivery.Event{Payload: []byte("{")}).DecodeJSON(new(any)); !delivery.IsPermanent(err) {
		t.Errorf("no JSON: %v", err)
	}
}
