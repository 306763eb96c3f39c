// Package schema is the schema of the generated client in ../ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is the row of an order.
type Order struct{ ent.Schema }

// Fields are the columns.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.Int64("id"), field.String("email"), field.Float("total")}
}
