// Read events with credentials of `slipway subscribers create`. Needs @nats-io/transport-node, and nothing of Slipway.
//
//     npm ci && npm start -- billing.json state.json
//
// One line an event on standard output. `state.json` keeps the newest number of each publisher: an event that comes again
// is left out, a number that is missing is told. Stop it, start it again: it goes on where it was.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect, createInbox, type Msg, type NatsConnection } from "@nats-io/transport-node";

interface Credentials {
  server: string;
  user: string;
  password: string;
  stream: string;
  consumer: string;
  inbox_prefix: string;
}

interface Event {
  id: string;
  type: string;
  subject: string;
  source: string;
  tenant: string;
  tenantsequence: string;
  data: unknown;
}

const BATCH = 50;
const WAIT_NANOSECONDS = 20_000_000_000;
const LOST_MILLISECONDS = 25_000;

function save(path: string, seen: Record<string, number>): void {
  writeFileSync(`${path}.draft`, JSON.stringify(seen));
  renameSync(`${path}.draft`, path); // Whole or not at all: a crash leaves the old file.
}

/** Your work. When it throws, the event is not acknowledged and comes again. */
function handle(event: Event): void {
  console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject }));
}

/**
 * Handle an event once, and notice what is missing before it. Numbers are gapless for each publisher and tenant; that
 * only holds for whole services, not for a subscriber that filters by entity or event type.
 */
function take(event: Event, seen: Record<string, number>): void {
  const key = `${event.tenant} ${event.source}`;
  const number = Number(event.tenantsequence);
  const last = seen[key];
  if (last !== undefined && number <= last) return; // It came again.
  if (last !== undefined && number > last + 1) {
    console.log(JSON.stringify({ gap: key, first: last + 1, last: number - 1 }));
  }
  handle(event);
  seen[key] = number;
}

/** One request for up to BATCH events. What has come counts; a status message (no data) says that the request ended. */
async function nextBatch(client: NatsConnection, credentials: Credentials): Promise<Msg[]> {
  const inbox = createInbox(credentials.inbox_prefix);
  const answers = client.subscribe(inbox, { max: BATCH + 1 });
  const lost = setTimeout(() => answers.unsubscribe(), LOST_MILLISECONDS);
  const next = `$JS.API.CONSUMER.MSG.NEXT.${credentials.stream}.${credentials.consumer}`;
  const messages: Msg[] = [];
  client.publish(next, JSON.stringify({ batch: BATCH, expires: WAIT_NANOSECONDS }), { reply: inbox });
  for await (const message of answers) {
    if (message.data.length === 0) break; // 404, 408 or 409: nothing (more) for this request.
    messages.push(message);
    const pending = Number(message.reply?.split(".").at(-1) ?? 0);
    if (messages.length === BATCH || pending === 0) break; // Do not wait for more than there is.
  }
  clearTimeout(lost);
  answers.unsubscribe();
  return messages;
}

async function read(credentials: Credentials, state: string): Promise<void> {
  const client = await connect({
    servers: credentials.server,
    user: credentials.user,
    pass: credentials.password,
    inboxPrefix: credentials.inbox_prefix,
    maxReconnectAttempts: -1,
  });
  const seen: Record<string, number> = existsSync(state) ? JSON.parse(readFileSync(state, "utf8")) : {};
  while (!client.isClosed()) {
    const messages = await nextBatch(client, credentials);
    for (const message of messages) take(message.json<Event>(), seen);
    if (messages.length > 0) save(state, seen); // What is acknowledged must never be handled again: keep that first.
    for (const message of messages) message.respond("+ACK");
  }
}

const [file, state] = process.argv.slice(2);
if (file === undefined || state === undefined) {
  console.error("usage: npm start -- CREDENTIALS.json STATE.json");
  process.exit(2);
}
const credentials = JSON.parse(readFileSync(file, "utf8")) as Credentials;
for (;;) {
  try {
    await read(credentials, state);
  } catch (error) {
    console.error(`connection lost (${error}); trying again`);
  }
  await new Promise((resolve) => setTimeout(resolve, 2000));
}
