// Writes an order with each program of the page into each database of the command line.
// The order commits, and one more fails at its commit, because its e-mail address is none.
import { context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import { PrismaPg } from '@prisma/adapter-pg';
import { drizzle } from 'drizzle-orm/node-postgres';
import pg from 'pg';

import { PrismaClient } from './generated/index.js';
import * as readme from './readme.js';
import * as withDrizzle from './with-drizzle.js';
import * as withPg from './with-pg.js';
import * as withPrisma from './with-prisma.js';

// reasons are the texts of an error and its causes.
function reasons(e) {
  return e ? `${e.message} ${JSON.stringify(e)} ${reasons(e.cause)}` : '';
}

async function placeBoth(number, name, place) {
  await place({ id: number, email: `${name}@example.com`, total: 12.5 });
  try {
    await place({ id: number + 100, email: name, total: 12.5 });
  } catch (e) {
    if (reasons(e).includes('no address')) return;
    throw e;
  }
  throw new Error(`${name} commits an order that the database refuses`);
}

async function run(url) {
  const pool = new pg.Pool({ connectionString: url });
  const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) });
  const db = drizzle(pool);
  await placeBoth(1, 'pg', (order) => withPg.placeOrder(pool, order));
  await placeBoth(2, 'readme', (order) => readme.write(pool, order));
  await placeBoth(3, 'drizzle', (order) => withDrizzle.placeOrder(db, order));
  await placeBoth(4, 'prisma', (order) => withPrisma.placeOrder(prisma, order));
  await prisma.$disconnect();
  await pool.end();
}

context.setGlobalContextManager(new AsyncLocalStorageContextManager());
propagation.setGlobalPropagator(new W3CTraceContextPropagator());
const span = { traceId: '4bf92f3577b34da6a3ce929d0e0e4736', spanId: '00f067aa0ba902b7', traceFlags: 1 };
await context.with(trace.setSpanContext(context.active(), span), async () => {
  for (const url of process.argv.slice(2)) await run(url);
});
