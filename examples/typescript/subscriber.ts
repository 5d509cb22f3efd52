// Read events with credentials of `slipway subscribers create`. Needs @nats-io/transport-node, and nothing of Slipway.
//
//     npm ci && npm start -- billing.json state.json
//
// One line an event on standard output. `state.json` keeps which events were handled and the newest number of each
// publisher: an event that comes again is left out, a number that is missing is told. Stop it, start it again: it goes
// on where it was.

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

/** handled: the ids of the last events; numbers: publisher and tenant to the highest number and missing ones. */
interface State {
  handled: string[];
  numbers: Record<string, { highest: number; missing: number[] }>;
}

const BATCH = 50;
const REMEMBERED = 1000; // More than one batch: only what is not acknowledged yet can come again.
const WAIT_NANOSECONDS = 20_000_000_000;
const LOST_MILLISECONDS = 25_000;
const ACK_MILLISECONDS = 5_000;

function save(path: string, state: State): void {
  writeFileSync(`${path}.draft`, JSON.stringify(state));
  renameSync(`${path}.draft`, path); // Whole or not at all: a crash leaves the old file.
}

/** Your work. When it throws, the event is not acknowledged and comes again, after others that came meanwhile. */
function handle(event: Event): void {
  console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject }));
}

/** Handle an event once. By its id: one that comes again may be older than the newest number. */
function take(event: Event, state: State): void {
  if (state.handled.includes(event.id)) return; // The acknowledgement was lost, or we were started again.
  handle(event);
  state.handled = [...state.handled, event.id].slice(-REMEMBERED);
  noticeGaps(event, state);
}

/**
 * Tell numbers that are missing before this event, once. One that only comes late is told when it comes. Numbers are
 * gapless for each publisher and tenant; that only holds for whole services, not for a subscriber that filters by
 * entity or event type.
 */
function noticeGaps(event: Event, state: State): void {
  const key = `${event.tenant} ${event.source}`;
  const number = Number(event.tenantsequence);
  const known = (state.numbers[key] ??= { highest: number - 1, missing: [] });
  const first = known.highest + 1;
  if (first < number) {
    console.log(JSON.stringify({ gap: key, first, last: number - 1 }));
    for (let one = first; one < number; one++) known.missing.push(one);
    known.missing = known.missing.slice(-REMEMBERED);
  } else if (known.missing.includes(number)) {
    known.missing = known.missing.filter((one) => one !== number);
    console.log(JSON.stringify({ late: key, number }));
  }
  known.highest = Math.max(known.highest, number);
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

async function read(credentials: Credentials, path: string): Promise<void> {
  const client = await connect({
    servers: credentials.server,
    user: credentials.user,
    pass: credentials.password,
    inboxPrefix: credentials.inbox_prefix,
    maxReconnectAttempts: -1,
  });
  const state: State = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : { handled: [], numbers: {} };
  while (!client.isClosed()) {
    const messages = await nextBatch(client, credentials);
    for (const message of messages) take(message.json<Event>(), state);
    if (messages.length > 0) save(path, state); // What is acknowledged must never be handled again: keep that first.
    // Confirmed, before the next batch: so no more than a batch can ever come again.
    await Promise.all(messages.map((message) => client.request(message.reply!, "+ACK", { timeout: ACK_MILLISECONDS })));
  }
}

const [file, path] = process.argv.slice(2);
if (file === undefined || path === undefined) {
  console.error("usage: npm start -- CREDENTIALS.json STATE.json");
  process.exit(2);
}
const credentials = JSON.parse(readFileSync(file, "utf8")) as Credentials;
for (;;) {
  try {
    await read(credentials, path);
  } catch (error) {
    console.error(`connection lost (${error}); trying again`);
  }
  await new Promise((resolve) => setTimeout(resolve, 2000));
}
