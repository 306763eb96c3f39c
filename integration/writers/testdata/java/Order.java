import java.math.BigDecimal;

record Order(long id, String email, BigDecimal total) {}
