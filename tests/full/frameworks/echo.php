<?php // What PHP reads of a request, behind its own server.
header('content-type: application/json');
$token = $_SERVER['HTTP_AUTHORIZATION'] ?? '';
echo json_encode([
    'cookie' => $_COOKIE['session'] ?? null,
    'header' => isset($_SERVER['HTTP_X_API_KEY']) ? trim($_SERVER['HTTP_X_API_KEY']) : null,
    'query' => $_GET['account_id'] ?? null,
    'token' => preg_match('/^\s*Bearer\s+(.*)$/i', $token, $found) ? trim($found[1]) : null,
], JSON_INVALID_UTF8_SUBSTITUTE);
