CREATE TABLE orders (id bigint PRIMARY KEY, email text NOT NULL, total double precision NOT NULL);
