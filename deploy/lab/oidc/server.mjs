// The development OpenID provider: real protocol, real signatures, no passwords.
//
// Everybody who reaches the port may sign in as any account of accounts.json, so it listens on the
// loopback address only (in a container, where loopback is nobody else's, SLIPWAY_OIDC_HOST names
// another and the engine publishes it on the host's loopback) and must never serve an installation.
// Keys and client secrets come from the state folder (written by provider.py); pending sign-ins and
// refresh tokens live in memory and end with the process, access tokens outlive it because the
// signing keys do.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import Provider, { errors } from 'oidc-provider';

const ACCESS_TOKEN_TTL_SECONDS = 3600;
const DAY_SECONDS = 86400;
const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

// A resource indicator must be an absolute URI (RFC 8707); the token's audience is the short name
// that each door of the gateway asks for.
const AUDIENCES = { 'urn:slipway:api': 'slipway-api', 'urn:slipway:operator': 'slipway-operator' };
const DEFAULT_RESOURCE = 'urn:slipway:api';

const port = Number(process.env.SLIPWAY_OIDC_PORT);
const host = process.env.SLIPWAY_OIDC_HOST ?? '127.0.0.1';
const issuer = process.env.SLIPWAY_OIDC_ISSUER;
const state = process.env.SLIPWAY_OIDC_STATE;
const readJson = (name) => JSON.parse(readFileSync(join(state, name), 'utf8'));

const accounts = new Map(
  JSON.parse(readFileSync(new URL('accounts.json', import.meta.url), 'utf8')).map((a) => [a.subject, a]),
);
const { cookie_keys: cookieKeys, service_clients: serviceClients } = readJson('clients.json');
const jwks = readJson('signing-keys.json');
const signingAlg = jwks.keys[0].alg;

const publicClient = {
  application_type: 'native', // Native clients may use any loopback port (RFC 8252 §7.3).
  token_endpoint_auth_method: 'none',
  id_token_signed_response_alg: signingAlg,
};

const clients = [
  {
    ...publicClient,
    client_id: 'slipway-cli',
    client_name: 'Slipway command line',
    grant_types: [DEVICE_GRANT, 'refresh_token'],
    response_types: [],
    redirect_uris: [],
  },
  {
    ...publicClient,
    client_id: 'slipway-console',
    client_name: 'Slipway console',
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    redirect_uris: ['http://127.0.0.1/sign-in/done', 'http://localhost/sign-in/done'],
    post_logout_redirect_uris: ['http://127.0.0.1/', 'http://localhost/'],
  },
  ...Object.entries(serviceClients).map(([clientId, { secret }]) => ({
    client_id: clientId,
    client_secret: secret,
    grant_types: ['client_credentials'],
    response_types: [],
    redirect_uris: [],
    token_endpoint_auth_method: 'client_secret_basic',
    id_token_signed_response_alg: signingAlg,
  })),
];

function resourceServer(_ctx, resource) {
  const audience = AUDIENCES[resource];
  if (audience === undefined) {
    throw new errors.InvalidTarget(`unknown resource; known are ${Object.keys(AUDIENCES).join(', ')}`);
  }
  return {
    scope: 'slipway',
    audience,
    accessTokenFormat: 'jwt',
    accessTokenTTL: ACCESS_TOKEN_TTL_SECONDS,
    jwt: { sign: { alg: signingAlg } },
  };
}

// A service client acts for its account, so that scripts and people are one subject to Slipway;
// client_id still tells them apart. (RFC 9068 suggests the client's own id here.)
function actForAccount(_ctx, token, jwt) {
  const account = accounts.get(serviceClients[token.clientId]?.account ?? token.accountId);
  if (account !== undefined) Object.assign(jwt.payload, { sub: account.subject, groups: account.groups });
}

async function findAccount(_ctx, subject) {
  const account = accounts.get(subject);
  if (account === undefined) return undefined; // Only the listed people exist.
  return {
    accountId: subject,
    claims: () => ({ sub: subject, name: account.name, groups: account.groups, email: `${subject}@slipway.test`, email_verified: true }),
  };
}

const provider = new Provider(issuer, {
  jwks,
  clients,
  cookies: { keys: cookieKeys },
  scopes: ['openid', 'offline_access', 'slipway'],
  claims: { openid: ['sub'], profile: ['name', 'groups'], email: ['email', 'email_verified'] },
  findAccount,
  pkce: { required: () => true },
  issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
  clientBasedCORS: (_ctx, origin) => ['127.0.0.1', 'localhost'].includes(new URL(origin).hostname),
  formats: { customizers: { jwt: actForAccount } },
  ttl: {
    ClientCredentials: ACCESS_TOKEN_TTL_SECONDS,
    AccessToken: ACCESS_TOKEN_TTL_SECONDS,
    IdToken: ACCESS_TOKEN_TTL_SECONDS,
    DeviceCode: 600,
    Interaction: 3600,
    Grant: 14 * DAY_SECONDS,
    Session: 14 * DAY_SECONDS,
    RefreshToken: 14 * DAY_SECONDS,
  },
  features: {
    devInteractions: { enabled: true },
    deviceFlow: { enabled: true },
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: (_ctx, _client, oneOf) => oneOf?.[0] ?? DEFAULT_RESOURCE,
      useGrantedResource: () => true,
      getResourceServerInfo: resourceServer,
    },
  },
});

provider.on('server_error', (_ctx, error) => console.error(error));

const server = provider.listen(port, host, () => console.log(`listening as ${issuer}`));
process.on('SIGTERM', () => {
  server.close(() => process.exit(0));
  server.closeAllConnections();
});
