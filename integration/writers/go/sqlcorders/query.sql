-- name: CreateOrder :exec
INSERT INTO orders (id, email, total) VALUES ($1, $2, $3);
