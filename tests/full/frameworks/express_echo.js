// What Express reads of a request, with cookie-parser and the query parser that was the default before Express 5.
const express = require('express');
const app = express();
app.set('query parser', 'extended');
app.use(require('cookie-parser')());
app.use((request, response) => {
  const [, token] = /^\s*Bearer\s+(.*)$/i.exec(request.get('authorization') ?? '') ?? [];
  response.json({
    cookie: request.cookies.session,
    header: request.get('x-api-key')?.trim(),
    query: request.query.account_id,
    token: token?.trim(),
  });
});
app.listen(Number(process.argv[2]), '127.0.0.1');
