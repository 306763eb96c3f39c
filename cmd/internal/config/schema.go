package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/notifyd/notifyd/handlers"
)

// Schema returns the JSON Schema of notifyd.yaml for the given destination
// types, for editors. [Parse] refuses all that the schema refuses; only Parse
// checks settings that depend on each other.
func Schema(registry Registry, descriptions Descriptions) ([]byte, error) {
	c := defaults()
	root, err := schemaOf(reflect.ValueOf(c).Elem(), descriptions)
	if err != nil {
		return nil, err
	}
	version := property(root, "version")
	version.Const = supportedVersion
	version.Pattern = "" // not even by an expansion
	version.Extras = nil
	lane := defaultLane()
	common, err := schemaOf(reflect.ValueOf(&lane).Elem(), descriptions)
	if err != nil {
		return nil, err
	}
	root.Definitions = make(jsonschema.Definitions)
	for pair := common.Properties.Oldest(); pair != nil; pair = pair.Next() {
		root.Definitions[pair.Key] = pair.Value
	}

	destinations := property(root, "destinations")
	destinations.PropertyNames = &jsonschema.Schema{Pattern: destinationName}
	destinations.AdditionalProperties = &jsonschema.Schema{}
	for _, name := range registry.names() {
		branch, err := branchOf(name, registry[name], common, descriptions)
		if err != nil {
			return nil, fmt.Errorf("destination type %s: %w", name, err)
		}
		destinations.AdditionalProperties.OneOf = append(destinations.AdditionalProperties.OneOf, branch)
	}

	root.Version = jsonschema.Version
	root.Title = "notifyd configuration"
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("config: schema: %w", err)
	}
	return append(out, '\n'), nil
}

// branchOf returns the schema of a destination of one type: the type, the handler's settings, and references to those of
// every lane, which stand once in the definitions.
func branchOf(name string, t Type, common *jsonschema.Schema, d Descriptions) (*jsonschema.Schema, error) {
	own, err := t.effective()
	if err != nil {
		return nil, err
	}
	branch, err := schemaOf(own, d)
	if err != nil {
		return nil, err
	}

	for pair := common.Properties.Oldest(); pair != nil; pair = pair.Next() {
		if property(branch, pair.Key) == nil {
			branch.Properties.Set(pair.Key, &jsonschema.Schema{Ref: "#/$defs/" + pair.Key})
		}
	}
	branch.Properties.Set("type", &jsonschema.Schema{Const: name, Description: typeDescription})
	if err := branch.Properties.MoveToFront("type"); err != nil {
		return nil, err
	}
	branch.Required = append([]string{"type"}, branch.Required...)
	branch.Title = "destination of type " + name
	return branch, nil
}

// typeDescription describes the key "type", for which no struct has a field.
const typeDescription = "Kind of destination, which decides what other keys there are. Cannot be an expansion."

// effective returns the settings of a type in a destination that sets nothing.
func (t Type) effective() (reflect.Value, error) {
	lane, settings := defaultLane(), t()
	shared := settingsOf(reflect.ValueOf(&lane).Elem(), reflect.Indirect(reflect.ValueOf(settings)))
	if err := collisions(shared); err != nil {
		return reflect.Value{}, err
	}

	shareDefaults(shared)
	if d, ok := settings.(Dependent); ok {
		d.Complete(func(string) bool { return false })
	}
	if e, ok := settings.(Effective); ok {
		settings = e.Effective()
	}
	return reflect.Indirect(reflect.ValueOf(settings)), nil
}

// collisions finds a name that means one thing to the lane and another to the
// type: a file could not set either.
func collisions(shared []setting) error {
	for _, s := range shared {
		if len(s.targets) > 1 && s.targets[0].Type() != s.targets[1].Type() {
			return fmt.Errorf("%s: %w", s.name, errCollision)
		}
	}
	return nil
}

func property(s *jsonschema.Schema, name string) *jsonschema.Schema {
	p, _ := s.Properties.Get(name)
	return p
}

// schemaOf reflects a struct and then loosens each setting: the file may have an
// expansion in place of its type, or nothing at all.
func schemaOf(v reflect.Value, d Descriptions) (s *jsonschema.Schema, err error) {
	defer func() { // the library panics at a type that it does not know
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", v.Type(), r)
		}
	}()

	r := jsonschema.Reflector{
		FieldNameTag:               "yaml",
		Anonymous:                  true,
		DoNotReference:             true,
		RequiredFromJSONSchemaTags: true,
		Mapper:                     mapType,
	}

	s = r.ReflectFromType(v.Type())
	s.Version = ""
	return s, loosenStruct(s, v, d)
}

var (
	errNoTag     = errors.New("the field needs a yaml tag")
	errCollision = errors.New("every destination has a setting of this name, and of another type")
)

// mapType maps the types that the file writes as text, and the mapping of
// destinations, whose values depend on their type.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch {
	case t == reflect.TypeFor[Destinations]():
		return &jsonschema.Schema{Type: "object"}
	case isText(t):
		return &jsonschema.Schema{Type: "string"}
	default:
		return nil
	}
}

func loosenStruct(s *jsonschema.Schema, v reflect.Value, d Descriptions) error {
	for _, f := range settingsOf(v) {
		p := property(s, f.name)
		if p == nil {
			return fmt.Errorf("%s: %s: %w", v.Type(), f.name, errNoTag)
		}

		or := []string{orNull}
		if slices.Contains(s.Required, f.name) {
			or = nil
		}
		setWords(p, f.rule.Enum)
		if err := loosen(p, f.targets[0], d, or...); err != nil {
			return err
		}

		if f.rule.Short != "" {
			loosenShort(p, f.rule)
		}
		if f.rule.Unset != "" {
			p.Default = nil // it is a value that other settings decide
		}

		p.Description = descriptionOf(f, d)
	}
	return nil
}

// descriptionOf returns the description of a setting for an editor, with the default that the tag unset describes.
func descriptionOf(s setting, d Descriptions) string {
	text := []string{d.of(s)}
	t := s.targets[0].Type()
	if t == reflect.TypeFor[handlers.Secret]() || t == reflect.TypeFor[[]handlers.Secret]() {
		text = append(text, "A secret: best as ${env:NAME} or ${file:PATH}.")
	}

	unset := ticked(s.rule.Unset)
	switch {
	case unset == "" || unset == "none":
	case strings.Contains(unset, "required"):
		text = append(text, strings.ToUpper(unset[:1])+unset[1:]+".")
	default:
		text = append(text, "Default: "+unset+".")
	}

	return strings.Join(text, " ")
}
