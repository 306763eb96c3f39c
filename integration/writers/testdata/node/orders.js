import { bigint, doublePrecision, pgTable, text } from 'drizzle-orm/pg-core';

export const orders = pgTable('orders', {
  id: bigint('id', { mode: 'number' }).primaryKey(),
  email: text('email').notNull(),
  total: doublePrecision('total').notNull(),
});
