package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"strings"

	"github.com/notifyd/notifyd"
)

// Descriptions are the meanings of settings, by the folder of the package that declares the field, such as "delivery", and
// by the type and the field, such as "Lane.Batch". Code is in backticks.
type Descriptions map[string]map[string]string

//go:embed descriptions.json
var descriptions []byte

// AllDescriptions returns the descriptions of all settings: the first paragraphs of the doc comments of their fields,
// which "go generate ./cmd/notifyd" collects.
func AllDescriptions() (Descriptions, error) {
	var all Descriptions
	if err := json.Unmarshal(descriptions, &all); err != nil {
		return nil, fmt.Errorf("config: descriptions: %w", err)
	}
	return all, nil
}

// of returns the description of a setting, "" without one.
func (d Descriptions) of(s setting) string {
	module := reflect.TypeFor[notifyd.Config]().PkgPath()
	folder := path.Join(".", strings.TrimPrefix(s.owner.PkgPath(), module))
	return d[folder][s.owner.Name()+"."+s.field]
}
