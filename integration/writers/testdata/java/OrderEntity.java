import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.math.BigDecimal;

@Entity
@Table(name = "orders")
class OrderEntity {
    @Id
    long id;

    String email;

    BigDecimal total;

    OrderEntity() {}

    OrderEntity(Order order) {
        id = order.id();
        email = order.email();
        total = order.total();
    }
}
