import com.fasterxml.jackson.databind.ObjectMapper;
import java.sql.Connection;

class Readme {
    static void write(Connection connection, Order order) throws Exception {
        var mapper = new ObjectMapper();
        try (var insert = connection.prepareStatement("INSERT INTO orders VALUES (?, ?, ?)")) {
            insert.setLong(1, order.id());
            insert.setString(2, order.email());
            insert.setBigDecimal(3, order.total());
            insert.executeUpdate();
        }
// README
    }
}
