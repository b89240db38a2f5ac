// Lets a test drive a client of the TypeScript SDK: commands come as lines of JSON on stdin, replies go to stdout.
// The one argument says which SDK, era, transport and capabilities, and what the person answers to forms.
import { createInterface } from 'node:readline';

const wish = JSON.parse(process.argv[2]);
const asked = [];
const answers = [...(wish.answers ?? [])];
const identity = { name: 'a-foreign-client', version: '1.0.0' };
const capabilities = answers.length ? { elicitation: { form: {} } } : {};

const answer = request => {
    asked.push(request.params);
    return answers.length > 1 ? answers.shift() : answers[0];
};

async function parts() {
    if (wish.sdk === 'v1') {
        const root = '@modelcontextprotocol/sdk';
        const { Client } = await import(`${root}/client/index.js`);
        const { ElicitRequestSchema } = await import(`${root}/types.js`);
        const { StdioClientTransport } = await import(`${root}/client/stdio.js`);
        const { StreamableHTTPClientTransport } = await import(`${root}/client/streamableHttp.js`);
        const client = new Client(identity, { capabilities });
        return { client, elicitation: ElicitRequestSchema, StdioClientTransport, StreamableHTTPClientTransport };
    }
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    const mode = wish.era === 'modern' ? { pin: '2026-07-28' } : wish.era;
    const client = new Client(identity, { capabilities, versionNegotiation: { mode } });
    return { client, elicitation: 'elicitation/create', StdioClientTransport, StreamableHTTPClientTransport };
}

const { client, elicitation, StdioClientTransport, StreamableHTTPClientTransport } = await parts();
if (answers.length) client.setRequestHandler(elicitation, answer);

const transport = wish.url
    ? new StreamableHTTPClientTransport(new URL(wish.url), { requestInit: { headers: wish.headers } })
    : new StdioClientTransport({ command: wish.command[0], args: wish.command.slice(1), env: process.env });

const deeds = {
    connect: async () => {
        await client.connect(transport);
        return { server: client.getServerVersion(), era: client.getProtocolEra?.() ?? 'legacy' };
    },
    tools: async () => client.listTools(),
    call: async ({ name, args }) => client.callTool({ name, arguments: args }),
    asked: async () => asked,
    close: async () => {
        if (transport.terminateSession) await transport.terminateSession();
        await client.close();
    }
};

for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let reply;
    try {
        reply = { ok: (await deeds[command.do](command)) ?? null };
    } catch (error) {
        reply = { failed: String(error?.message ?? error), code: error?.code ?? null };
    }
    process.stdout.write(JSON.stringify(reply) + '\n');
}
await client.close();
