package destinations

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/settingstest"
)

// TestConfigs: no Config of a type prints its secrets, each mistake in one is a *handlers.FieldError, and a program outside of
// the module can write each field.
func TestConfigs(t *testing.T) {
	t.Parallel()
	const hidden = "hunter2hunter2hunter2"
	secrets := 0
	for name, fresh := range Registry(t.TempDir(), io.Discard, io.Discard) {
		settings := fresh()
		for _, mistake := range field.Split(settings.Validate()) {
			if _, ok := errors.AsType[*handlers.FieldError](mistake); !ok {
				t.Errorf("%s: %v is no FieldError", name, mistake)
			}
		}

		for _, s := range settingstest.Of(settings) {
			if pkg := typeOfField(s.Value.Type()).PkgPath(); strings.Contains(pkg, "/internal/") && !strings.Contains(pkg, "/cmd/") {
				t.Errorf("%s: %s has a type of %s", name, s.Path, pkg)
			}
			if s.Value.Type() == reflect.TypeFor[handlers.Secret]() {
				secrets++
				s.Value.Set(reflect.ValueOf(handlers.NewSecret(hidden)))
			}
		}

		text := fmt.Sprintf("%v %+v %#v %s %x %v", settings, settings, settings, settings, settings, settings.Validate())
		asJSON, err := json.Marshal(reflect.ValueOf(settings).Elem().Field(0).Interface())
		if err != nil {
			t.Errorf("%s as JSON: %v", name, err)
		}
		for _, form := range []string{hidden, fmt.Sprintf("%x", hidden)} {
			if strings.Contains(text+string(asJSON), form) {
				t.Errorf("%s shows a secret: %s %s", name, text, asJSON)
			}
		}
	}
	if secrets < 10 {
		t.Errorf("only %d secrets", secrets)
	}
}

// typeOfField returns the type of which a field has one or several.
func typeOfField(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}
