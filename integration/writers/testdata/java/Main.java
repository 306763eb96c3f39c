import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.propagation.ContextPropagators;
import jakarta.persistence.PersistenceConfiguration;
import java.math.BigDecimal;
import java.sql.DriverManager;
import java.util.logging.Level;
import java.util.logging.Logger;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.TransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;

/**
 * Writes an order with each program of the page into each database of the command line. The order commits, and one
 * more fails at its commit, because its e-mail address is none.
 */
public class Main {
    interface Place {
        void order(Order order) throws Exception;
    }

    @Configuration
    @EnableTransactionManagement
    static class Beans {
        @Bean
        TransactionManager transactions(DataSource source) {
            return new DataSourceTransactionManager(source);
        }

        @Bean
        WithSpring orders(DataSource source) {
            return new WithSpring(new JdbcTemplate(source));
        }
    }

    static void placeBoth(long number, String name, Place place) throws Exception {
        place.order(new Order(number, name + "@example.com", new BigDecimal("12.5")));
        try {
            place.order(new Order(number + 100, name, new BigDecimal("12.5")));
        } catch (Exception e) {
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                if (String.valueOf(cause.getMessage()).contains("no address")) {
                    return;
                }
            }
            throw e;
        }
        throw new IllegalStateException(name + " commits an order that the database refuses");
    }

    /** Has place work on a connection of its own, in a transaction. */
    static Place transaction(String url, JdbcPlace place) {
        return order -> {
            try (var connection = DriverManager.getConnection(url)) {
                connection.setAutoCommit(false);
                place.order(connection, order);
                connection.commit();
            }
        };
    }

    interface JdbcPlace {
        void order(java.sql.Connection connection, Order order) throws Exception;
    }

    static void spring(String url) throws Exception {
        try (var context = new AnnotationConfigApplicationContext()) {
            context.registerBean(DataSource.class, () -> new DriverManagerDataSource(url));
            context.register(Beans.class);
            context.refresh();
            placeBoth(3, "spring", context.getBean(WithSpring.class)::placeOrder);
        }
    }

    static void hibernate(String url) throws Exception {
        var configuration = new PersistenceConfiguration("shop")
                .managedClass(OrderEntity.class)
                .managedClass(OutboxEvent.class)
                .property(PersistenceConfiguration.JDBC_URL, url)
                .property("hibernate.jdbc.use_get_generated_keys", false);
        try (var factory = configuration.createEntityManagerFactory()) {
            placeBoth(4, "hibernate", order -> {
                try (var em = factory.createEntityManager()) {
                    em.getTransaction().begin();
                    WithHibernate.placeOrder(em, order);
                    em.getTransaction().commit();
                }
            });
        }
    }

    public static void main(String[] urls) throws Exception {
        Logger.getLogger("").setLevel(Level.SEVERE);
        GlobalOpenTelemetry.set(OpenTelemetry.propagating(ContextPropagators.create(W3CTraceContextPropagator.getInstance())));
        var span = SpanContext.create("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", TraceFlags.getSampled(), TraceState.getDefault());
        try (var scope = Span.wrap(span).makeCurrent()) {
            for (var url : urls) {
                placeBoth(1, "jdbc", transaction(url, WithJdbc::placeOrder));
                placeBoth(2, "readme", transaction(url, Readme::write));
                spring(url);
                hibernate(url);
            }
        }
    }
}
